"""What single frameworks ask of a loader; none of them is imported before it is used."""
