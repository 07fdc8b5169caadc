"""All that runs inside an image: one cold process, one cell, one record."""
