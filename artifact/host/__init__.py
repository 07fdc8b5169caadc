"""The host side: starts one process per trial, checks what came out, keeps it."""
