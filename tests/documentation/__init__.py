"""Every code block of the README, the documentation and the examples, run.

A page's blocks are followed from top to bottom in a folder of its own:

    ```python title="recipe.py"       is written to that file
    ```python                         is executed
    ```python title="examples/a.py"   has lines of that file
    ```sh                             is typed, a line at a time, in quick form
    ```text                           is what the lines before it printed
    ```diff title="a.py b.py"         is the difference of two examples
    ```message title="words"          quotes a message, whose words are in the source
    ```json                           has fields of the schema
    ```diagram                        is a drawing for readers
    others                            are the file of their title, word by word

Nothing is left out in silence: a block of another kind, or a line that no rule of `typed.py` knows, fails.
"""
