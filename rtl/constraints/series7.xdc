# Example for 7-series and UltraScale+: the whole of `ht_udp` in one clock of a 10 Gb/s MAC. It has
# no pins of its own: all its ports lead to the MAC, the memory's controller and a bus.
create_clock -name core -period 6.400 [get_ports clk_i]

# Asserted at any time, released with the clock by whoever drives it.
set_false_path -from [get_ports rst_ni]

# Set once before the first frame and then left alone.
set_false_path -from [get_ports {ip_i[*] port_i[*] has_header_i}]
