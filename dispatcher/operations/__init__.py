"""Use cases of operators: status, rankings, verification of the windows, the doctor."""
