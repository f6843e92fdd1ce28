"""A federation of processes on Flower: clients beside SuperNodes, the server in a ServerApp."""
