"""`stilltide status`: all clusters on one screen."""
