"""What koordlet, manager and scheduler answer on their HTTP pages to koordctl."""
