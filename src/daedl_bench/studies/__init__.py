"""Searches and measurements that led to a protocol or a default."""
