"""Ray actors that host env runners and learners, and the connection to Ray."""
