"""What backends of chips with a torch device share: runtime, KV, torch's own ops, and the backend made of parts."""
