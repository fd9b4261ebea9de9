"""Services that not each client asks: loaded by those who ask."""
