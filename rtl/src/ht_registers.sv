// SPDX-License-Identifier: Apache-2.0
//
// The registers behind AXI4-Lite. Made of rtl/registers.toml; edit that.
//
// One access at a time: a write is taken when address and data are both there, and neither
// channel's `ready` waits for the other side's answer to come off first.

module ht_registers (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic [31:0] slots_i,
  input  logic [31:0] stripe_bytes_i,
  input  logic [31:0] lines_i,
  input  logic [31:0] key_bytes_i,
  input  logic [31:0] bucket_bits_i,
  output logic [31:0] control_o,
  output logic [31:0] time_o,
  input  logic [31:0] ready_i,
  input  logic        gets_i,
  input  logic        sets_i,
  input  logic        deletes_i,
  input  logic        others_i,
  input  logic        hits_i,
  input  logic        misses_i,
  input  logic        refused_invalid_i,
  input  logic        refused_too_large_i,
  input  logic        refused_no_memory_i,
  input  logic        refused_unknown_i,
  input  logic        entered_i,
  input  logic        stall_cycles_i,
  input  logic [31:0] free_small_i,
  input  logic [31:0] free_middle_i,
  input  logic [31:0] free_large_i,
  input  logic [31:0] bus_bytes_i,

  input  logic        awvalid_i,
  output logic        awready_o,
  input  logic [7:0]  awaddr_i,
  input  logic        wvalid_i,
  output logic        wready_o,
  input  logic [31:0] wdata_i,
  output logic        bvalid_o,
  input  logic        bready_i,
  input  logic        arvalid_i,
  output logic        arready_o,
  input  logic [7:0]  araddr_i,
  output logic        rvalid_o,
  input  logic        rready_i,
  output logic [31:0] rdata_o
);

  localparam int unsigned PlaceWidth = 5;

  logic [31:0] gets_q;
  logic [31:0] sets_q;
  logic [31:0] deletes_q;
  logic [31:0] others_q;
  logic [31:0] hits_q;
  logic [31:0] misses_q;
  logic [31:0] refused_invalid_q;
  logic [31:0] refused_too_large_q;
  logic [31:0] refused_no_memory_q;
  logic [31:0] refused_unknown_q;
  logic [31:0] entered_q;
  logic [31:0] stall_cycles_q;

  logic is_write, is_read;
  logic [PlaceWidth-1:0] write_place, read_place;
  logic [31:0] shown;

  assign is_write    = awvalid_i && wvalid_i && !bvalid_o;
  assign is_read     = arvalid_i && !rvalid_o;
  assign awready_o   = is_write;
  assign wready_o    = is_write;
  assign arready_o   = is_read;
  assign write_place = awaddr_i[2+:PlaceWidth];
  assign read_place  = araddr_i[2+:PlaceWidth];

  always_comb begin
    unique case (read_place)
      5'd0: shown = 32'h414d4b56;
      5'd1: shown = 32'h00000200;
      5'd2: shown = slots_i;
      5'd3: shown = stripe_bytes_i;
      5'd4: shown = lines_i;
      5'd5: shown = key_bytes_i;
      5'd6: shown = bucket_bits_i;
      5'd7: shown = control_o;
      5'd8: shown = time_o;
      5'd9: shown = ready_i;
      5'd10: shown = gets_q;
      5'd11: shown = sets_q;
      5'd12: shown = deletes_q;
      5'd13: shown = others_q;
      5'd14: shown = hits_q;
      5'd15: shown = misses_q;
      5'd16: shown = refused_invalid_q;
      5'd17: shown = refused_too_large_q;
      5'd18: shown = refused_no_memory_q;
      5'd19: shown = refused_unknown_q;
      5'd20: shown = entered_q;
      5'd21: shown = stall_cycles_q;
      5'd22: shown = free_small_i;
      5'd23: shown = free_middle_i;
      5'd24: shown = free_large_i;
      5'd25: shown = bus_bytes_i;
      default: shown = '0;
    endcase
  end

  always_ff @(posedge clk_i) begin
    if (is_read) rdata_o <= shown;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      bvalid_o <= 1'b0;
      rvalid_o <= 1'b0;
      gets_q <= '0;
      sets_q <= '0;
      deletes_q <= '0;
      others_q <= '0;
      hits_q <= '0;
      misses_q <= '0;
      refused_invalid_q <= '0;
      refused_too_large_q <= '0;
      refused_no_memory_q <= '0;
      refused_unknown_q <= '0;
      entered_q <= '0;
      stall_cycles_q <= '0;
      control_o <= 32'd1;
      time_o <= 32'd0;
    end else begin
      bvalid_o <= is_write || (bvalid_o && !bready_i);
      rvalid_o <= is_read || (rvalid_o && !rready_i);
      if (is_write && write_place == PlaceWidth'(7)) control_o <= wdata_i;
      if (is_write && write_place == PlaceWidth'(8) && wdata_i >= time_o) time_o <= wdata_i;
      if (gets_i) gets_q <= gets_q + 1'b1;
      if (sets_i) sets_q <= sets_q + 1'b1;
      if (deletes_i) deletes_q <= deletes_q + 1'b1;
      if (others_i) others_q <= others_q + 1'b1;
      if (hits_i) hits_q <= hits_q + 1'b1;
      if (misses_i) misses_q <= misses_q + 1'b1;
      if (refused_invalid_i) refused_invalid_q <= refused_invalid_q + 1'b1;
      if (refused_too_large_i) refused_too_large_q <= refused_too_large_q + 1'b1;
      if (refused_no_memory_i) refused_no_memory_q <= refused_no_memory_q + 1'b1;
      if (refused_unknown_i) refused_unknown_q <= refused_unknown_q + 1'b1;
      if (entered_i) entered_q <= entered_q + 1'b1;
      if (stall_cycles_i) stall_cycles_q <= stall_cycles_q + 1'b1;
    end
  end

endmodule
