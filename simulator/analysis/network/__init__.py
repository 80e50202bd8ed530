"""What a timeline and a cluster say of the network: traffic of links, cables, the topology as a picture shows it."""
