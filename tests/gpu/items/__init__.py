"""What is measured on a card; each function is a phase of tests.gpu.phases."""
