"""What the commands share: printing, connecting, a process's web site."""
