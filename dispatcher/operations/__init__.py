"""What operators ask: status, verification of the windows, the doctor."""
