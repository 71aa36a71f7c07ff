"""A campaign: standard training programs hang in many ways, and dump-stacks has to say who and why."""
