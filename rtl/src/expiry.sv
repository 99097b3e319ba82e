// SPDX-License-Identifier: Apache-2.0
//
// Whether a slot has ended: 0 is never, and a slot is dead from its second on.

module expiry (
  input  logic [31:0] expiry_i,
  input  logic [31:0] now_i,
  output logic        is_expired_o
);

  assign is_expired_o = expiry_i != '0 && expiry_i <= now_i;

endmodule
