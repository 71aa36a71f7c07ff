"""Columns of the rows of payload `watch`: a line has no names, which would double its length."""

# What changes every second. trouble_bits: NVML's throttle reasons that mean trouble; energy_j:
# NVML's counter since the driver was loaded.
GPU = "power_w util_percent used_mib temperature_c sm_mhz trouble_bits energy_j".split()
CARD = "name limit_w total_mib pci_address ecc_errors nvlinks_up nvlinks".split()
RATES = "in_mb_s out_mb_s errors_in_last_minute".split()
LINK = "name kind state gbit_s losses".split()
DISK = "path used_mib total_mib reason".split()  # two nulls with "" where a mount hangs
PROCESS = "pid user name gpu memory_mib run rank age_s".split()
XID = "ago_s pci_address code text".split()
