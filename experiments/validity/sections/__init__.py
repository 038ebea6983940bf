"""The sections of the validity page, one a file; found by being here (`experiments.validity.section`)."""
