"""The offset index of links, and claims over offsets: used by links and groups (H3, I)."""
