"""Kubernetes as the operator reaches it: client, kinds, names, Events, leader election."""
