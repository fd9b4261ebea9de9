"""The documentation site: the hook of MkDocs, and the pages of the reference made from code."""
