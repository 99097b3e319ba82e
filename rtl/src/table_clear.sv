// SPDX-License-Identifier: Apache-2.0
//
// Clears the table after reset, because memory content is arbitrary at power-up: before the first
// request is admitted, the locator and the terms of every slot are cleared.

module table_clear #(
  parameter int unsigned BucketBits = 10,
  parameter int unsigned Lines = 4,
  parameter int unsigned LineBeats = 1,
  parameter int unsigned TermsLine = 3,
  parameter int unsigned AddressWidth = 32
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  output logic                    is_done_o,
  output logic                    write_valid_o,
  input  logic                    write_ready_i,
  output logic [AddressWidth-1:0] write_address_o,
  output logic                    write_last_o
);

  localparam int unsigned GroupWidth = LineBeats > 1 ? $clog2(LineBeats) : 1;
  localparam int unsigned BucketBeats = Lines * LineBeats;

  logic [BucketBits:0]     bucket_q;   // highest bit: done
  logic                    is_terms_q;
  logic [GroupWidth-1:0]   group_q;
  logic [AddressWidth-1:0] base_q;     // the bucket's first beat

  assign is_done_o       = bucket_q[BucketBits];
  assign write_valid_o   = !is_done_o;
  assign write_last_o    = group_q == GroupWidth'(LineBeats - 1);
  assign write_address_o = base_q + AddressWidth'(group_q)
                         + (is_terms_q ? AddressWidth'(TermsLine * LineBeats) : '0);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      bucket_q   <= '0;
      is_terms_q <= 1'b0;
      group_q    <= '0;
      base_q     <= '0;
    end else if (write_valid_o && write_ready_i) begin
      group_q <= write_last_o ? '0 : group_q + 1'b1;
      if (write_last_o) begin
        is_terms_q <= !is_terms_q && TermsLine != 0;
        if (is_terms_q || TermsLine == 0) begin
          bucket_q <= bucket_q + 1'b1;
          base_q   <= base_q + AddressWidth'(BucketBeats);
        end
      end
    end
  end

endmodule
