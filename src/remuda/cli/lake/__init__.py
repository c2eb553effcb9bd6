"""`remuda lake`: the tables that Spark keeps of every transition, and the answers that they give."""
