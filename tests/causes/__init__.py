"""A campaign: crashes and hangs whose first cause is known, and healthy and idle jobs without one."""
