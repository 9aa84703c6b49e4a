"""Predictions laid beside public measurements."""
