"""Models and their providers: which server a model's name stands for, and how it is called."""
