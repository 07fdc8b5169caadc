"""Tables: one small module each, pure functions of records."""
