"""OpenAI batch files answered line by line: read ahead only as needed, written in input order, resumable."""
