"""Model of throughput: pure, imports nothing of feedline above `order`."""
