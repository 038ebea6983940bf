"""Rules for which block of a prefix cache gives way (`cluster.retention`), one file each."""
