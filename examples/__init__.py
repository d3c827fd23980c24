"""Small programs that use the dispatcher, each in one file. Tests run them."""
