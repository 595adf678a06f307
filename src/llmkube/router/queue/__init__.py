"""Requests that wait in front of an engine of ours, so that no tenant takes all of its slots.

fair_queue  who is next: start-time fair queueing over tokens, without a clock; pure
turns       lets requests wait for their turn, and leave
"""
