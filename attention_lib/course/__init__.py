"""What the book needs and an importer does not: corpus, training, figures."""
