"""The command line. `main.py` knows the commands by name; each family is a module that is imported when it is run."""
