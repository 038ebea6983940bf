"""Rules for the decision `scale`: how many instances of an elastic fleet are on."""
