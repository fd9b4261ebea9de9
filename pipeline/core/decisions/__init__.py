"""How prepared transactions end that clients have left: by rows in databases (L4, L5, L6)."""
