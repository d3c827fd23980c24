"""The functions of the endpoints, one module for each subject. ``endpoints.py`` lists them."""
