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
  output logic [31:0] seed_low_o,
  output logic [31:0] seed_high_o,
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
  input  logic        refused_cas_i,
  input  logic        entered_i,
  input  logic        stall_cycles_i,
  input  logic [31:0] log_bits_i,
  input  logic [31:0] log_head_low_i,
  input  logic [31:0] log_head_high_i,
  input  logic [31:0] bus_bytes_i,
  input  logic        dropped_overflow_i,
  input  logic        dropped_broken_i,
  input  logic        dropped_other_i,
  input  logic        dropped_unsound_i,
  input  logic        dropped_malformed_i,
  input  logic        is_early_i,      // no request has come

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

  localparam int unsigned PlaceWidth = 6;

  logic [63:0] gets_q;
  logic [63:0] sets_q;
  logic [63:0] deletes_q;
  logic [63:0] others_q;
  logic [63:0] hits_q;
  logic [63:0] misses_q;
  logic [63:0] refused_invalid_q;
  logic [63:0] refused_too_large_q;
  logic [63:0] refused_no_memory_q;
  logic [63:0] refused_unknown_q;
  logic [63:0] refused_cas_q;
  logic [63:0] entered_q;
  logic [63:0] stall_cycles_q;
  logic [63:0] dropped_overflow_q;
  logic [63:0] dropped_broken_q;
  logic [63:0] dropped_other_q;
  logic [63:0] dropped_unsound_q;
  logic [63:0] dropped_malformed_q;

  logic is_write, is_read;
  logic [PlaceWidth-1:0] write_place, read_place;
  logic [31:0] shown, high;
  logic [31:0] high_q;   // of the counter that was read last

  assign is_write    = awvalid_i && wvalid_i && !bvalid_o;
  assign is_read     = arvalid_i && !rvalid_o;
  assign awready_o   = is_write;
  assign wready_o    = is_write;
  assign arready_o   = is_read;
  assign write_place = awaddr_i[2+:PlaceWidth];
  assign read_place  = araddr_i[2+:PlaceWidth];

  always_comb begin
    unique case (read_place)
      6'd0: shown = 32'h414d4b56;
      6'd1: shown = 32'h00000200;
      6'd2: shown = slots_i;
      6'd3: shown = stripe_bytes_i;
      6'd4: shown = lines_i;
      6'd5: shown = key_bytes_i;
      6'd6: shown = bucket_bits_i;
      6'd7: shown = control_o;
      6'd8: shown = time_o;
      6'd9: shown = seed_low_o;
      6'd10: shown = seed_high_o;
      6'd11: shown = ready_i;
      6'd12: shown = gets_q[31:0];
      6'd13: shown = high_q;
      6'd14: shown = sets_q[31:0];
      6'd15: shown = high_q;
      6'd16: shown = deletes_q[31:0];
      6'd17: shown = high_q;
      6'd18: shown = others_q[31:0];
      6'd19: shown = high_q;
      6'd20: shown = hits_q[31:0];
      6'd21: shown = high_q;
      6'd22: shown = misses_q[31:0];
      6'd23: shown = high_q;
      6'd24: shown = refused_invalid_q[31:0];
      6'd25: shown = high_q;
      6'd26: shown = refused_too_large_q[31:0];
      6'd27: shown = high_q;
      6'd28: shown = refused_no_memory_q[31:0];
      6'd29: shown = high_q;
      6'd30: shown = refused_unknown_q[31:0];
      6'd31: shown = high_q;
      6'd32: shown = refused_cas_q[31:0];
      6'd33: shown = high_q;
      6'd34: shown = entered_q[31:0];
      6'd35: shown = high_q;
      6'd36: shown = stall_cycles_q[31:0];
      6'd37: shown = high_q;
      6'd38: shown = log_bits_i;
      6'd39: shown = log_head_low_i;
      6'd40: shown = log_head_high_i;
      6'd41: shown = bus_bytes_i;
      6'd42: shown = dropped_overflow_q[31:0];
      6'd43: shown = high_q;
      6'd44: shown = dropped_broken_q[31:0];
      6'd45: shown = high_q;
      6'd46: shown = dropped_other_q[31:0];
      6'd47: shown = high_q;
      6'd48: shown = dropped_unsound_q[31:0];
      6'd49: shown = high_q;
      6'd50: shown = dropped_malformed_q[31:0];
      6'd51: shown = high_q;
      default: shown = '0;
    endcase
    unique case (read_place)
      6'd12: high = gets_q[63:32];
      6'd14: high = sets_q[63:32];
      6'd16: high = deletes_q[63:32];
      6'd18: high = others_q[63:32];
      6'd20: high = hits_q[63:32];
      6'd22: high = misses_q[63:32];
      6'd24: high = refused_invalid_q[63:32];
      6'd26: high = refused_too_large_q[63:32];
      6'd28: high = refused_no_memory_q[63:32];
      6'd30: high = refused_unknown_q[63:32];
      6'd32: high = refused_cas_q[63:32];
      6'd34: high = entered_q[63:32];
      6'd36: high = stall_cycles_q[63:32];
      6'd42: high = dropped_overflow_q[63:32];
      6'd44: high = dropped_broken_q[63:32];
      6'd46: high = dropped_other_q[63:32];
      6'd48: high = dropped_unsound_q[63:32];
      6'd50: high = dropped_malformed_q[63:32];
      default: high = high_q;
    endcase
  end

  always_ff @(posedge clk_i) begin
    if (is_read) begin
      rdata_o <= shown;
      high_q  <= high;
    end
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
      refused_cas_q <= '0;
      entered_q <= '0;
      stall_cycles_q <= '0;
      dropped_overflow_q <= '0;
      dropped_broken_q <= '0;
      dropped_other_q <= '0;
      dropped_unsound_q <= '0;
      dropped_malformed_q <= '0;
      control_o <= 32'd1;
      time_o <= 32'd0;
      seed_low_o <= 32'd0;
      seed_high_o <= 32'd0;
    end else begin
      bvalid_o <= is_write || (bvalid_o && !bready_i);
      rvalid_o <= is_read || (rvalid_o && !rready_i);
      if (is_write && write_place == PlaceWidth'(7)) control_o <= wdata_i;
      if (is_write && write_place == PlaceWidth'(8)) time_o <= wdata_i;
      if (is_write && write_place == PlaceWidth'(9) && is_early_i) seed_low_o <= wdata_i;
      if (is_write && write_place == PlaceWidth'(10) && is_early_i) seed_high_o <= wdata_i;
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
      if (refused_cas_i) refused_cas_q <= refused_cas_q + 1'b1;
      if (entered_i) entered_q <= entered_q + 1'b1;
      if (stall_cycles_i) stall_cycles_q <= stall_cycles_q + 1'b1;
      if (dropped_overflow_i) dropped_overflow_q <= dropped_overflow_q + 1'b1;
      if (dropped_broken_i) dropped_broken_q <= dropped_broken_q + 1'b1;
      if (dropped_other_i) dropped_other_q <= dropped_other_q + 1'b1;
      if (dropped_unsound_i) dropped_unsound_q <= dropped_unsound_q + 1'b1;
      if (dropped_malformed_i) dropped_malformed_q <= dropped_malformed_q + 1'b1;
    end
  end

endmodule
