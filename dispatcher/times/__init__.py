"""Time: clock, zones, periods, quiet hours, send times. Pure, but for the clock."""
