"""Other systems as plans: what each of them would do with the same models on the same machine, at its best."""
