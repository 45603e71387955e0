"""The manifold of coreset posteriors at one point: from draws or in closed form."""
