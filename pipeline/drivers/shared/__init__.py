"""Parts that several folders of drivers use."""
