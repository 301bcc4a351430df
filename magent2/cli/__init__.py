"""The command line. `main.py` lists the commands; each family of commands is a module, imported when it is needed."""
