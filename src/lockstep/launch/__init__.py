"""Starting the processes of a world, and finding out who started this one."""
