"""Databases that decide how prepared transactions end, reached by SQLAlchemy."""
