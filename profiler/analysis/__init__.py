"""What records say: figures and reports."""
