"""The tests. As a regular package it precedes packages of the same name that other distributions install."""
