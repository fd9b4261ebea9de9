"""The last error of a link, for operators."""
