"""Studies: measurements beside the experiments, each a module with `main(argv)`."""
