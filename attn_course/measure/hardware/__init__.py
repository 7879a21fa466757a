"""The hardware: data sheets, occupancy, memory levels, and the counters of Nsight Compute."""
