"""What the commands and studies of the experiments share."""
